// The server's clock between its answers. An answer that has not changed is not sent again, but time goes on.
import { createContext, useContext } from "react";
import { useNow } from "./live.tsx";

/** What the server's clock said, and what ours said then, in seconds and milliseconds. */
export interface Heard {
  server: number;
  ours: number;
}

export const ClockContext = createContext<Heard | null>(null);

const EVERY = 1000;

/** Epoch seconds by the server's clock. */
export function useServerNow(): number {
  const heard = useContext(ClockContext);
  const ours = useNow(EVERY);
  return heard ? heard.server + Math.max(0, ours - heard.ours) / 1000 : ours / 1000;
}
