"""What `make bench` measures: ratios between things that ran side by side, never seconds alone."""
