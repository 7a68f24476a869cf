"""Budget, cut, plan and retries: what is sent of a conversation."""
