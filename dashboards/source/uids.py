"""UIDs of the dashboards. They must never change, because links and bookmarks contain them."""

OVERVIEW = "evenstep-overview"
JOB = "evenstep-job"
NODE = "evenstep-node"
SERVICE = "evenstep-service"
