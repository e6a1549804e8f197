"""Procedural streets and rooms with a ray-cast LiDAR: pairs of one sweep and the complete labels around it.

    world (street, indoor) = ground + solids of object kinds  ->  lidar.sweep: points
                                                              ->  truth.labels: the complete grid

Everything follows from seeds. Coordinates are metres, x forward, y left, z up; a world's ground is near z = 0.
"""
