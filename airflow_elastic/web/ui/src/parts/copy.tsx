// A text to take along, such as a command: a click copies it.
import { useEffect, useState } from "react";

const SHOWN_MS = 2000;

export function Copy({ text, label }: { text: string; label: string }) {
  const [said, setSaid] = useState<string | null>(null);
  useEffect(() => {
    const timer = said === null ? undefined : setTimeout(() => setSaid(null), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [said]);
  // Browsers hand out the clipboard only over HTTPS and to pages of this machine.
  if (!navigator.clipboard) return null;
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => setSaid("Copied"),
      () => setSaid("Not allowed"),
    );
  return (
    <button type="button" className="el-mini" aria-label={label} title={label} onClick={() => void copy()}>
      <span role="status">{said ?? "copy"}</span>
    </button>
  );
}
