"""Records into the log, on behalf of whoever asks over HTTP; with a request id, once however often they ask."""
