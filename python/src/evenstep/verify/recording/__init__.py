"""The processes of `evenstep verify`: they read samples by the given plans and record each step."""
