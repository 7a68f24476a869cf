"""`make bench`: what the proxy adds, as ratios against direct and nginx in one run."""
