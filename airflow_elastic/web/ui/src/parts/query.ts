// Settings of a page that are kept in its address, so that a link shows the same to somebody else.
import { useCallback } from "react";
import { useSearchParams } from "react-router-dom";

/** The words of the address, and a way to change some; null or "" removes one. */
export function useWords(): [URLSearchParams, (change: Record<string, string | null>) => void] {
  const [words, setWords] = useSearchParams();
  const change = useCallback(
    (changes: Record<string, string | null>) =>
      setWords(
        (before) => {
          const after = new URLSearchParams(before);
          for (const [name, value] of Object.entries(changes)) {
            if (value === null || value === "") after.delete(name);
            else after.set(name, value);
          }
          return after;
        },
        { replace: true, preventScrollReset: true },
      ),
    [setWords],
  );
  return [words, change];
}
