"""Runs flows on Spark. A flow is a function of DataFrames that derives one topic from others."""
