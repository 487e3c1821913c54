// A part of a page with a heading, and what is shown while there is nothing else.
import type { ReactNode } from "react";

interface PanelProps {
  title: string;
  aside?: ReactNode;
  children: ReactNode;
  level?: "error" | "warning";
}

export function Panel({ title, aside, children, level }: PanelProps) {
  return (
    <section className={`el-panel${level ? ` el-panel-${level}` : ""}`} aria-label={title}>
      <header className="el-panel-head">
        <h2>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="el-empty">{children}</p>;
}

export function Notice({ level, children }: { level: "info" | "warning" | "error"; children: ReactNode }) {
  return (
    <div className={`el-notice el-${level}`} role={level === "error" ? "alert" : "status"}>
      {children}
    </div>
  );
}

/** Grey bars in the place of what is still on its way. */
export function Loading({ lines = 3 }: { lines?: number }) {
  return (
    <div className="el-loading" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        <span key={line} />
      ))}
    </div>
  );
}

/** Grey bars until the first answer; the server's words where that failed. */
export function Pending({ trouble, lines }: { trouble: string | null; lines?: number }) {
  return trouble ? <Notice level="error">{trouble}</Notice> : <Loading {...(lines ? { lines } : {})} />;
}
