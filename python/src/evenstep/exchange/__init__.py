"""The exchange of reports and plans between ranks and with the predictor, and plans without a predictor."""
