"""The screens of the workbench, one a file."""
