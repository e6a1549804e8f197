"""Procedural streets and rooms with a ray-cast LiDAR.

    world (street, indoor) = ground + solids of object kinds  ->  lidar.simulate_sweep: points

The training distribution makes the complete labels around a sweep.

Everything is reproducible from seeds. Coordinates are metres, x forward, y left, z up; a world's ground is near z = 0.
"""
