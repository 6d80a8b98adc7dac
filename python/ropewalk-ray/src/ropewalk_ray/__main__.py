"""`python -m ropewalk_ray`."""

from ._cli import main

raise SystemExit(main())
