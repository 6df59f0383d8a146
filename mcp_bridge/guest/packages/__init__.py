"""Inside the container: packages that are added to a script that runs."""
