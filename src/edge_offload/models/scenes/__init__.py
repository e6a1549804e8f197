"""Procedural streets and rooms with a ray-cast LiDAR.

    world (street, indoor) = ground + solids of object kinds  ->  lidar.sweep: points

The training distribution makes the complete labels around a sweep.

Everything follows from seeds. Coordinates are metres, x forward, y left, z up; a world's ground is near z = 0.
"""
