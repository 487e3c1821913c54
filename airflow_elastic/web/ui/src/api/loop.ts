// Does something again and again while somebody looks at the page: at once when they come back, never while they are away.

const LONGEST_PAUSE = 60_000;

/** Milliseconds to wait after so many failures in a row: they double, up to a minute. */
export function pause(interval: number, failures: number): number {
  return Math.min(interval * 2 ** Math.min(failures, 10), Math.max(LONGEST_PAUSE, interval));
}

export interface Loop {
  now: () => void;
  stop: () => void;
}

/**
 * Starts it.
 *
 * @param once does it. It ends early where the signal says so. False: it failed, and the next pause is longer.
 * @param interval milliseconds between an end and the next beginning; null: not again.
 */
export function startLoop(once: (signal: AbortSignal) => Promise<boolean>, interval: () => number | null): Loop {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let running: AbortController | null = null;
  let failures = 0;
  let over = false;

  const now = async () => {
    clearTimeout(timer);
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const well = await once(mine.signal);
    if (mine.signal.aborted) return;
    running = null;
    failures = well ? 0 : failures + 1;
    const wait = interval();
    if (!over && !document.hidden && wait !== null) timer = setTimeout(now, pause(wait, failures));
  };
  const looked = () => {
    if (!document.hidden) return void now();
    clearTimeout(timer);
    running?.abort();
  };
  document.addEventListener("visibilitychange", looked);
  if (!document.hidden) void now();
  return {
    now: () => void now(),
    stop: () => {
      over = true;
      clearTimeout(timer);
      running?.abort();
      document.removeEventListener("visibilitychange", looked);
    },
  };
}
