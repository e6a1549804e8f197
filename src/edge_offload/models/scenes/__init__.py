"""Procedural streets and rooms with a ray-cast LiDAR: pairs of one sweep and the complete labels around it.

    world (street, indoor) = ground + solids of object kinds  ->  lidar.simulate_sweep: points
                                                              ->  truth.true_labels: the complete grid

Everything is reproducible from seeds. Coordinates are metres, x forward, y left, z up; a world's ground is near z = 0.
"""
