"""More than one machine: the engine as replicas behind one front, and Ray Serve, which places and restarts them.

Nothing here is imported unless ``--engine ray`` asks for it, and only ``ray_fleet`` and ``ray_deployment`` import Ray.
"""
