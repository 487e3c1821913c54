"""Decisions about checkpoints: when to save, which stay, which copies a run goes on from. Pure.

`save_interval` weighs what a save costs against how often the run fails, `retention` says what may be removed,
`recovery_choice` picks among states found on disks, `throttle` how fast to upload, `sample_accounts` whether every
sample counts once.
"""
