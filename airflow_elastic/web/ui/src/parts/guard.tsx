// Catches what a page throws, so that a fault of ours never takes Airflow's page with it.
import { Component, type ReactNode } from "react";

interface Props {
  children: ReactNode;
}

export class Guard extends Component<Props, { fault: string | null }> {
  override state = { fault: null };

  static getDerivedStateFromError(error: unknown) {
    return { fault: error instanceof Error ? error.message : String(error) };
  }

  override render() {
    if (this.state.fault === null) return this.props.children;
    return (
      <div className="el-notice el-error" role="alert">
        <strong>This page has a fault.</strong> The training is not affected. <code>{this.state.fault}</code>{" "}
        <button type="button" className="el-link" onClick={() => this.setState({ fault: null })}>
          Try again
        </button>
      </div>
    );
  }
}
