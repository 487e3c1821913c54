// All events that fit a filter: read page by page, then only what is new.
import { useEffect, useState } from "react";
import { address, get } from "../api/client.ts";
import { startLoop } from "../api/loop.ts";
import { troubleOf } from "../api/polling.ts";
import type { EventPage, EventRow, Level } from "../api/types.ts";
import { usePollInterval } from "../parts/settings.ts";

const PAGE = 500;
/** What is kept: of the longest journals the newest. */
const MOST = 20_000;

interface Events {
  events: EventRow[];
  total: number;
  trouble: string | null;
  /** Whether everything has been read once. */
  complete: boolean;
}

const NONE: Events = { events: [], total: 0, trouble: null, complete: false };

export function useEvents(path: string, level: "" | Level, text: string): Events {
  const interval = usePollInterval();
  const [state, setState] = useState(NONE);

  useEffect(() => {
    let after = -1;
    let events: EventRow[] = [];
    setState(NONE);

    const more = async (signal: AbortSignal): Promise<boolean> => {
      try {
        for (;;) {
          const url = address(`/${path}/events`, { after, limit: PAGE, level, q: text });
          const answer = await get<EventPage>(url, null, signal);
          if (!answer) return true;
          const { events: found, next, total } = answer.document;
          if (found.length > 0) events = [...events, ...found].slice(-MOST);
          const caughtUp = found.length < PAGE || next === after;
          after = next;
          setState({ events, total, trouble: null, complete: caughtUp });
          if (caughtUp) return true;
        }
      } catch (error) {
        if (!signal.aborted) setState((before) => ({ ...before, trouble: troubleOf(error) }));
        return false;
      }
    };
    return startLoop(more, () => interval).stop;
  }, [path, level, text, interval]);
  return state;
}
