"""A store in a bucket of Amazon S3, or of a server with its protocol. `store` is the way in.

`client` has the retries, `bulk` sends and fetches large objects in parts, `ranges` reads many ranges at once. Only this
room and `hooks` import boto3.
"""
