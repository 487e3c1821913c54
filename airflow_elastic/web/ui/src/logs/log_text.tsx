// The lines of a log. They are in blocks, and the browser lays out only those blocks that are in view (logs.css).
import { useLayoutEffect, useMemo, useRef } from "react";
import { LogBlock } from "./log_block.tsx";
import { blocksOf, linesOf } from "./lines.ts";
import type { Log } from "./use_log.ts";

interface Props {
  log: Log;
  text: string;
  wrap: boolean;
  follow: boolean;
  onFollow: (follow: boolean) => void;
}

/** So near to the end somebody wants to follow; so near to the beginning, to read on. */
const NEAR = 40;

export function LogText({ log, text, wrap, follow, onFollow }: Props) {
  const home = useRef<HTMLDivElement>(null);
  const before = useRef({ offset: log.offset, height: 0 });
  const blocks = useMemo(() => blocksOf(linesOf(log.text, log.offset > 0), log.offset), [log.text, log.offset]);

  // At the end stays at the end; what is put in before leaves the reader where they are.
  useLayoutEffect(() => {
    const element = home.current;
    if (!element) return;
    if (follow) element.scrollTop = element.scrollHeight;
    else if (log.offset < before.current.offset) element.scrollTop += element.scrollHeight - before.current.height;
    before.current = { offset: log.offset, height: element.scrollHeight };
  }, [blocks, follow, wrap, log.offset]);

  const scrolled = () => {
    const element = home.current;
    if (!element) return;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR;
    if (atEnd !== follow && element.scrollHeight > element.clientHeight) onFollow(atEnd);
  };
  return (
    <div
      ref={home}
      className={wrap ? "el-log el-log-wrap" : "el-log"}
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label="Output of the rank"
      onScroll={scrolled}
    >
      {log.earlier && (
        <button type="button" className="el-more" onClick={log.earlier}>
          Show earlier output
        </button>
      )}
      {blocks.map(({ key, lines }) => (
        <LogBlock key={key} lines={lines} text={text} />
      ))}
    </div>
  );
}
