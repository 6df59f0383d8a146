"""The driver that runs an OCI runtime (runc, crun) on bundles of our own, without a container engine."""
