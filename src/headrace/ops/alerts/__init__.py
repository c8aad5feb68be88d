"""Rules about lags that fire before something is lost, and what they have said."""
