"""``ranktop export --prometheus``: the jobs of this machine as metrics that a Prometheus server scrapes."""
