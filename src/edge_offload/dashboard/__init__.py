"""Seeing a run: its records as a stream, what is kept of them, and the live web page that shows them.

``stream`` says what a record is, ``messages`` makes records of ROS messages (it knows them by their attributes alone),
``bag`` reads them from a bag file, ``digest`` finds the events among them, ``history`` keeps the recent ones,
``server`` shows them to browsers that ``access`` lets in, and ``replay`` plays a file as if it happened now.
"""
