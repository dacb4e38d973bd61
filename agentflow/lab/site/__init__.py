"""The course as pages that need no network and no Python."""
