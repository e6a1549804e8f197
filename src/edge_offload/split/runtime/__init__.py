"""Both halves of a plan, each on its own machine, with the transfers on threads of their own.

============  ==========================================================================
module        its one reason
============  ==========================================================================
``tracing``   a module at hand as a sequence that both sides agree on
``tables``    plans that both sides hold, compiled once, named by their place
``half``      one side's values: pieces that come in any order, freed when nobody needs them
``progress``  one side of one inference: what can be computed and what can be sent now
``pieces``    transfers cut into pieces, coded, and checked before they are believed
============  ==========================================================================

Robot: :mod:`edge_offload.modes.split.robot.runner`; server: :mod:`edge_offload.server.services.split.runs`.
"""
