"""One module for each change of the tables, oldest first by number. What has been released is never changed."""
