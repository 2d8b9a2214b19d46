"""One open partition: a pure core that decides, a driver that performs, a shell that is held."""
