"""Where each dashboard is, for ever: links and bookmarks name these."""

OVERVIEW = "evenstep-overview"
JOB = "evenstep-job"
NODE = "evenstep-node"
SERVICE = "evenstep-service"
JOB_POSTGRES = "evenstep-job-postgres"
