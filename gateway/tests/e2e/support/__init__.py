"""What the end-to-end tests stand on: processes, engines, phones, clients. Nothing in here knows a test."""
