"""Write the generated pages of docs/reference: `python -m docs.generator`, from a checkout."""

from eagle3_tools.reference import main

if __name__ == "__main__":
    main()
