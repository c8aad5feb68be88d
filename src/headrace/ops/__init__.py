"""Operations on an app: verification, lag, alerts, dead letters and its graph."""
