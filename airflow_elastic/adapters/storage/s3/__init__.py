"""A store in a bucket of Amazon S3, or of a server with its protocol. `store` is the way in.

- `client`: how clients are made. `errors`: what an answer means to the person who chose the bucket.
- `bulk`: large objects in parts. `ranges`: many ranges at once. `stream`: one range into memory of the caller.

Retries are in three places. `client` has those of botocore. `stream` resumes answers that break off (`back_off`).
`store` repeats conditional writes in conflict. Only this room and `hooks` import boto3.
"""
