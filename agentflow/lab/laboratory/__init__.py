"""A place of one's own to experiment in: a marked database, a scratch schema, real processes that may be killed."""
