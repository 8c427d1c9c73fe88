"""Plans with copies over the link: run sequences with reads that come by a copy, their search, and a bound."""
