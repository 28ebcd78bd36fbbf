"""What several folders of tests share; on the path of pytest, and part of no distribution."""
