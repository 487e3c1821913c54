// The cursor that all charts of a page share: the time under it, for those who write it out.
import { useSyncExternalStore } from "react";

let at: number | null = null;
const listeners = new Set<() => void>();

export function pointAt(time: number | null): void {
  if (time === at) return;
  at = time;
  for (const listener of listeners) listener();
}

export function onPoint(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function pointed(): number | null {
  return at;
}

export function usePointed(): number | null {
  return useSyncExternalStore(onPoint, pointed);
}
