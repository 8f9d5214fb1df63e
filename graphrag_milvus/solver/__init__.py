"""From passages and relations to an answer."""
