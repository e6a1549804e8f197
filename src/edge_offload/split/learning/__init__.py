"""How a split is learnt without frames noticing: a process of low priority traces, measures and plans.

Robot and server begin one each when a split is opened, and end it when that is open. Frames go on in the process that
began it, whose interpreter and processor nothing of this takes.

============  =====================================================================================
module        its one reason
============  =====================================================================================
``planning``  from costs to the plans that both sides hold
``process``   beginning the process, asking it, and what is done when it does not answer
``worker``    what the process does
============  =====================================================================================
"""
