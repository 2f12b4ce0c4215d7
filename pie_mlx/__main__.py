"""``python -m pie_mlx``: the command line, where the script is not on the path."""

from pie_mlx.cli.main import main

if __name__ == "__main__":
    main()
