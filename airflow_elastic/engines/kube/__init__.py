"""Engines whose workers are pods of Kubernetes.

- `engine`: submit, watch, scale and delete, for all kinds of jobs. `kind`: the protocol of a kind; `kinds`: each of
  them.
- `create`, `ownership`: make objects, or adopt those of this run. `leftovers`: find those that nobody needs.
- `render`: the pod of a worker. `watch`: the state of workers. `queues`: Kueue, Volcano, gangs of Kubernetes.
- `scale_steps`, `worker_places`, `resize`: scaling. `options`, `checks`: `engine_options`, and what is wrong with
  them.
- `manifests`: from a YAML file of yours to a run.
"""
