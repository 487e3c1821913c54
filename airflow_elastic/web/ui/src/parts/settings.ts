// What the server says about itself, asked for once a page.
import { createContext, useContext, useSyncExternalStore } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { Config } from "../api/types.ts";

const DEFAULT_POLL_SECONDS = 3;

export function useConfig(): Config | undefined {
  return usePolled<Config>(address("/config"), null).document;
}

/** Milliseconds between two questions about what changes fast. */
export const PollContext = createContext(DEFAULT_POLL_SECONDS * 1000);
export const usePollInterval = () => useContext(PollContext);

export function pollInterval(config: Config | undefined): number {
  return Math.max(config?.poll_seconds ?? DEFAULT_POLL_SECONDS, 1) * 1000;
}

// Airflow and host.tsx mark the dark mode in the same way: a class of <html>.
function watchMode(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  return () => observer.disconnect();
}

export function useDark(): boolean {
  return useSyncExternalStore(watchMode, () => document.documentElement.classList.contains("dark"));
}
