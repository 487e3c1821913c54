// The text of a log: its end, then what is new; or the surroundings of a place. Earlier text comes when asked for.
import { useCallback, useEffect, useRef, useState } from "react";
import { address, get } from "../api/client.ts";
import { startLoop } from "../api/loop.ts";
import { troubleOf } from "../api/polling.ts";
import type { LogText } from "../api/types.ts";
import type { Place } from "./choose.ts";

const CHUNK = 65_536;
/** Text before the place that was asked for. */
const BEFORE = 16_384;
/** What is kept, in characters: of more the beginning goes. */
const MOST = 4_000_000;

export interface Log {
  text: string;
  /** Bytes of the file from which and up to which the text reaches, and its size. */
  offset: number;
  next: number;
  size: number;
  read: boolean;
  trouble: string | null;
  /** Reads what is before; null at the beginning of the file. */
  earlier: (() => void) | null;
}

type Held = Omit<Log, "earlier">;

const NOTHING: Held = { text: "", offset: 0, next: 0, size: 0, read: false, trouble: null };

export function useLog(path: string, place: Place, at: number | null, interval: number): Log {
  const { attempt, rank, generation } = place;
  const [held, setHeld] = useState(NOTHING);
  const now = useRef(held);
  const asking = useRef(false);
  const keep = useCallback((next: Held) => {
    now.current = next;
    setHeld(next);
  }, []);
  const ask = useCallback(
    (offset: number, limit: number, signal: AbortSignal) =>
      get<LogText>(address(`/${path}/logs/text`, { attempt, rank, generation, offset, limit }), null, signal),
    [path, attempt, rank, generation],
  );

  useEffect(() => {
    keep(NOTHING);
    const more = async (signal: AbortSignal): Promise<boolean> => {
      try {
        const before = now.current;
        const from = before.read ? before.next : at === null ? -CHUNK : Math.max(0, at - BEFORE);
        const answer = await ask(from, CHUNK, signal);
        if (answer) keep(joined(now.current, answer.document));
        return true;
      } catch (error) {
        if (!signal.aborted) keep({ ...now.current, trouble: troubleOf(error) });
        return false;
      }
    };
    return startLoop(more, () => interval).stop;
  }, [ask, at, interval, keep]);

  const earlier = useCallback(() => {
    const { offset } = now.current;
    if (asking.current || offset === 0) return;
    asking.current = true;
    const from = Math.max(0, offset - CHUNK);
    void ask(from, offset - from, new AbortController().signal)
      .then((answer) => {
        if (!answer || now.current.offset !== offset) return;
        keep({ ...now.current, text: answer.document.text + now.current.text, offset: answer.document.offset });
      })
      .catch((error: unknown) => keep({ ...now.current, trouble: troubleOf(error) }))
      .finally(() => {
        asking.current = false;
      });
  }, [ask, keep]);
  return { ...held, earlier: held.offset > 0 ? earlier : null };
}

/** The text with what follows. A file that has become shorter is another one. */
export function joined(before: Held, { text, offset, next, size }: LogText): Held {
  if (!before.read || offset !== before.next || size < before.size) {
    return { text, offset, next, size, read: true, trouble: null };
  }
  if (text === "") return { ...before, size, trouble: null };
  const whole = before.text + text;
  const cut = whole.length > MOST ? whole.indexOf("\n", whole.length - MOST) + 1 : 0;
  const dropped = cut > 0 ? new TextEncoder().encode(whole.slice(0, cut)).length : 0;
  return { text: whole.slice(cut), offset: before.offset + dropped, next, size, read: true, trouble: null };
}
