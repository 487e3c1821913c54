// Documents that keep themselves fresh while somebody looks.
import { useCallback, useEffect, useRef, useState } from "react";
import { get, Refused } from "./client.ts";
import { type Loop, startLoop } from "./loop.ts";

export interface Polled<Document> {
  /** The newest document; undefined before the first. It stays while requests fail. */
  document: Document | undefined;
  /** Why the newest request failed; null while all is well. */
  trouble: string | null;
  /** When the server last answered, and when it sent the document, in milliseconds. */
  heard: number | null;
  sent: number;
  /** Asks now. */
  refresh: () => void;
}

/** Words for a request that failed. */
export function troubleOf(error: unknown): string {
  return error instanceof Refused ? error.message : "The server does not answer.";
}

/**
 * Keeps the document of an address fresh.
 *
 * @param interval milliseconds between an answer and the next question; null: ask once.
 * @param about what the document is about. While that stays, an old document is shown until the one of a new address
 *   is there.
 */
export function usePolled<Document>(url: string, interval: number | null, about: string = url): Polled<Document> {
  const [held, setHeld] = useState<{ about: string; document: Document; sent: number }>();
  const [trouble, setTrouble] = useState<string | null>(null);
  const [heard, setHeard] = useState<number | null>(null);
  const loop = useRef<Loop>(null);
  const now = useRef({ interval, about });
  now.current = { interval, about };

  useEffect(() => {
    let etag: string | null = null;
    const once = async (signal: AbortSignal): Promise<boolean> => {
      try {
        const answer = await get<Document>(url, etag, signal);
        if (answer) {
          etag = answer.etag;
          setHeld({ about: now.current.about, document: answer.document, sent: Date.now() });
        }
        setTrouble(null);
        setHeard(Date.now());
        return true;
      } catch (error) {
        if (!signal.aborted) setTrouble(troubleOf(error));
        return false;
      }
    };
    const started = startLoop(once, () => now.current.interval);
    loop.current = started;
    return started.stop;
  }, [url]);

  return {
    document: held?.about === about ? held.document : undefined,
    trouble,
    heard,
    sent: held?.sent ?? 0,
    refresh: useCallback(() => loop.current?.now(), []),
  };
}
