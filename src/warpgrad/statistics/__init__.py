"""Where numbers become claims: estimates, intervals, and paired differences."""
