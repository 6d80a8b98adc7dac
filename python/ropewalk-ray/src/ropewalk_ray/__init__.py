"""Runs the units of a ropewalk study as tasks of a Ray cluster, without a shared disk.

    import ropewalk_ray

    report = ropewalk_ray.run("plan.toml", "out/study", address="auto")
    print(report["report"], report["done"], report["failed"], report["missing"])
"""

from ._driver import Error, connect, run

__all__ = ["Error", "connect", "run"]
