"""Where a run is stored: a folder, or an S3 prefix, behind the small interface `store.Store`.

`open` returns the store of a URI, `folder` and `s3` are the two kinds, and `keys` are names that work in both. This
package must not know what is stored.
"""
